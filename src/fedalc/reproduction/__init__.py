"""The paper's tables, run from `experiments/` and set beside the published figures. Import the module you need."""
