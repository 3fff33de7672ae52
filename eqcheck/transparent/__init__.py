"""Evidence from the target whose every call is read: the hash model, and real models that are watched."""
