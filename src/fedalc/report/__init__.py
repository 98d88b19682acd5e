"""Results for people: tables, figures and a page that opens offline. Import the module you need."""
