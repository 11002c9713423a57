"""Support for tests of this package; training needs none of it."""
