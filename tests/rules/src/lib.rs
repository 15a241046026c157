//! The rules of the source code and of the documents, as tests in `tests/`: which crates and modules import
//! which (`imports`), no circles among modules (`circles`), no task without a name (`spawns`), and pages whose
//! links and quotations are true (`book`).
//!
//! They read the repository and need none of its crates, so a change of the code does not build them anew.
