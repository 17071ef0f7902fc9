"""Where private data become public: pay, then read, then add noise."""
