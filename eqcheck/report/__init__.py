"""What is told of an audit: data for programs, and text for readers."""
