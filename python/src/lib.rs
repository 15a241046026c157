//! The extension module `rolldock._rolldock`: the queue's client for Python.
//!
//! This crate moves bytes, waits and starts tasks. Names, conversions and documentation for users are in
//! `python/rolldock/`, and no other code uses this module.
//!
//! | module | what it does |
//! |---|---|
//! | `driver` | a tokio runtime that runs in the threads that wait for calls |
//! | `runtime` | the one runtime of a process, also after a fork |
//! | `tasks` | starts tasks on the runtime, each with a name |
//! | `callbacks` | the thread that tells asyncio that a call has ended |
//! | `pending` | a call that runs while Python waits for it, or asyncio awaits it |
//! | `client`, `options` | the calls of a queue |
//! | `lease` | rows under a lease, which is renewed while they are used |
//! | `rows`, `column`, `buffer` | Arrow rows, their columns, and their memory as NumPy and DLPack read it |
//! | `input` | columns from NumPy arrays, strings and lists |
//! | `releases` | the arrays that columns use, until no column needs them |
//! | `interchange` | the Arrow PyCapsule interface, in both directions |
//! | `dtype` | types of columns by name |
//! | `errors` | errors as exceptions |
//!
//! # Invariants
//! - No call holds the GIL while it waits, and no thread that drives the runtime takes the GIL.
//! - No thread of the runtime is in Python when the interpreter ends.
//! - Memory that Python reads belongs to an Arrow buffer that the reading object keeps alive.
//! - A value that refers to sockets or threads belongs to one process. A forked child never uses or drops it.
//! - A forked child takes no lock that a thread of its parent may take without the GIL: the lock may have been held at
//!   the fork, and no thread of the child unlocks it.

mod buffer;
mod callbacks;
mod client;
mod column;
mod driver;
mod dtype;
mod errors;
mod input;
mod interchange;
mod lease;
mod options;
mod pending;
mod releases;
mod rows;
mod runtime;
mod tasks;

use pyo3::prelude::*;

/// The queue's client; `rolldock` wraps it.
#[pymodule(gil_used = true)]
fn _rolldock(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<client::Queue>()?;
    module.add_class::<column::Column>()?;
    module.add_class::<dtype::Dtype>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<rows::Rows>()?;
    let at_exit = module.py().import("atexit")?;
    at_exit.call_method1("register", (wrap_pyfunction!(runtime::end, module)?,))?;
    Ok(())
}
