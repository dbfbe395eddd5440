//! Crash model.
