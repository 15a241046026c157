//! A Python function as a reward, in a pool of worker processes.
//!
//! `module:function` or `/path/to/file.py:function`, called with the keywords `data_source`, `solution_str`,
//! `ground_truth` and `extra_info`, which is the signature of verl's `compute_score`; a function that also names a
//! parameter `prompt` gets it. It may return a number, a bool, or a dict with `score` and, if it likes, `acc` and
//! `pred`; it may be `async`. What it prints goes to standard error. What it raises is its job's error, with the last
//! line of the traceback and the place. A function that is not there is an error for every job, and one start.
//!
//! # Deliberately absent
//! An interpreter in this process: one reward that leaks, hangs or crashes would be everybody's.

use std::time::Duration;

use super::config::PythonConfig;
use super::processes::PoolSpec;

/// The program that every worker runs.
const WORKER: &str = include_str!("worker.py");
/// Where Python looks for modules.
const PATH_VARIABLE: &str = "PYTHONPATH";

/// The pool of a function. `start` limits the import; `inherited_path` is what this process has as `PYTHONPATH`.
pub(super) fn pool_spec(config: &PythonConfig, start: Duration, inherited_path: Option<&str>) -> PoolSpec {
    let words = [&config.interpreter, "-u", "-c", WORKER, &config.function].map(str::to_owned);
    let mut env = config.env.clone();
    if !config.path.is_empty() {
        let last = env.get(PATH_VARIABLE).map(String::as_str).or(inherited_path);
        let places: Vec<&str> = config.path.iter().map(String::as_str).chain(last).collect();
        env.insert(PATH_VARIABLE.to_owned(), places.join(":"));
    }
    PoolSpec {
        what: format!("python reward {:?}", config.function),
        words: words.to_vec(),
        directory: config.directory.clone(),
        env,
        workers: config.workers,
        handshake: Some(start),
        jobs_per_worker: config.jobs_per_worker,
        memory_bytes: config.memory_mb.map(super::config::bytes_of_mb),
    }
}

#[cfg(test)]
mod tests;
