"""What server and clients say to each other, and as which bytes."""
