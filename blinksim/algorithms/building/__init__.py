"""What the builders share: orders of ranks, trees and paths as schedules, polishing."""
