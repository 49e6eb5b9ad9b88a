"""What several strategies share: products over axes, layouts, a loss over split classes, stages that arrive."""
