"""Is a schedule right, or a file?"""
