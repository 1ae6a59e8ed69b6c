"""Commands for a checkpoint: files of rows and weights in; predictors, scores, graphs and verdicts out."""
