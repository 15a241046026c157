//! The values in paths and queries. If they cannot be parsed, the answer is an error of the queue with a
//! code.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use serde::de::DeserializeOwned;

use super::{Failure, bad};
use crate::QueueError;

/// The values in a path.
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(names)) => Ok(Self(names)),
            Err(rejection) => Err(bad(rejection.body_text()).into()),
        }
    }
}

/// The values in a query.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(bad(rejection.body_text()).into()),
        }
    }
}

pub(super) async fn unknown_path(uri: Uri) -> Failure {
    Failure(QueueError::UnknownPath { path: uri.path().to_owned() })
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> Failure {
    Failure(QueueError::WrongMethod { method: method.to_string(), path: uri.path().to_owned() })
}
