"""Shared parts of the builders: orders of ranks, trees and paths as schedules, polishing."""
