"""Ray-traced cities: clients walk through streets, and Sionna RT says what they hear of the server."""
