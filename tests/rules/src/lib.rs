//! The rules of the source code and of the documents, as tests in `tests/`: the allowed imports of crates and
//! modules (`imports`), no circles among modules (`circles`), no task without a name (`spawns`), and correct
//! links and quotations in the documents (`book`).
//!
//! The tests read the repository and need none of its other crates, so a change of the code does not rebuild
//! them.
