"""The paper's communication table."""
