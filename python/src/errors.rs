//! Errors of the queue as exceptions of `rolldock.errors`.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rolldock_queue::QueueError;
use serde_json::{Value, json};

/// Why a call ended without a value.
pub(crate) enum Failure {
    Queue(QueueError),
    /// The call was cancelled before it had an outcome.
    Cancelled,
    /// The call panicked.
    Panicked,
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::Queue(error)
    }
}

/// Makes the exception for an error of the queue. `rolldock.errors` has one class for each code.
pub(crate) fn of_queue(py: Python<'_>, error: &QueueError) -> PyErr {
    let details = serde_json::to_value(error).unwrap_or(Value::Null);
    let code = details.get("code").and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let class = json!(error.class());
    exception(py, (&code, class.as_str().unwrap_or_default(), &error.to_string(), &details.to_string()))
}

/// Makes the exception for a call in a process to which the client does not belong.
pub(crate) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let message =
        format!("{what} belongs to the parent process; open a new client after a fork, or use spawn");
    exception(py, ("forked", "client", &message, "{}"))
}

fn exception(py: Python<'_>, parts: (&str, &str, &str, &str)) -> PyErr {
    let made = py.import("rolldock.errors").and_then(|errors| errors.getattr("make")?.call1(parts));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

impl Failure {
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Queue(error) => of_queue(py, &error),
            Self::Cancelled => PyRuntimeError::new_err("the call was cancelled"),
            Self::Panicked => {
                PyRuntimeError::new_err("the call panicked, which is a defect of rolldock; see its log")
            }
        }
    }
}

/// Makes the exception for a wrong argument.
pub(crate) fn bad(reason: impl Into<String>) -> PyErr {
    PyValueError::new_err(reason.into())
}

/// Makes the exception for arrays that do not fit together.
pub(crate) fn of_arrow(error: arrow_schema::ArrowError) -> PyErr {
    bad(error.to_string())
}

/// Converts a result of the queue for a caller that holds the GIL.
pub(crate) fn raised<T>(py: Python<'_>, result: Result<T, QueueError>) -> PyResult<T> {
    result.map_err(|error| of_queue(py, &error))
}
