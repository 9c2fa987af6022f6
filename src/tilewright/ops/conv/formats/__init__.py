"""Problems and documents as other tools write them."""
