"""The site: static pages of contributed runs, made from many submissions, and the rules by which runs are compared."""
