//! TODO-stub
