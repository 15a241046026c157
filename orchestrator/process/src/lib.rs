//! What every process of Rolldock does besides its work: it ends when it is asked to, serves on threads of
//! its own, keeps metrics, holds descriptors for its files, and prints for people.
//!
//! # Deliberately absent
//! This crate does not use recipes or rollouts, because some commands use this crate without them.

mod awake;
mod clock;
mod descriptors;
mod folders;
mod metrics;
mod output;
mod serve;
mod signals;
mod threads;

pub use clock::unix_seconds;
pub use descriptors::{held_files, hold_for_files};
pub use folders::{QUEUE_FOLDER, queue_folder};
pub use metrics::{keep_metrics, of_members, of_queue, page};
pub use output::{
    WIDTH, grouped, is_incomplete, new_table, plural, said, say, say_error, share, token_words,
};
pub use serve::{
    serve_fleet, serve_queue, serve_queue_locally, serve_queue_on_threads, serve_queue_unnamed, until_taken,
};
pub use signals::{Ending, Endings};
pub use threads::{ServingThreads, threads_default};
