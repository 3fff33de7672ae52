"""Cases: one test input each, as frozen, versioned data."""
