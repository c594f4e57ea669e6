"""Files that hold columns of numbers instead of a row for every device, link and send."""
