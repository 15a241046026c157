//! A template of few letters, and tests over all modules.

pub(crate) mod letters;
mod properties;
