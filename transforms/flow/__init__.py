"""All files: the fixpoint over their summaries; values with the steps that they came by."""
