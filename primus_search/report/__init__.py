"""What people read of a search: terminal tables, pages, explanations."""
