//! What a trainer says of a new version, and why it may not be taken.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::ErrorClass;

/// Versions are signed integers of 64 bits in rows and journals.
const VERSION_MAX: u64 = i64::MAX as u64;

/// There is a new policy version.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Announcement {
    /// Its number: greater than all before.
    pub version: u64,
    /// What servers call it, in the version spans of their answers; the number if absent. It ends in the number, so that
    /// it can be read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Where the weights lie, as the servers see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whatever else the way of the update needs to know; passed on untouched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

impl Announcement {
    /// Of a version of which nothing is known but its number.
    pub fn new(version: u64) -> Self {
        Self { version, label: None, path: None, payload: None }
    }

    /// What servers call it.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.version.to_string())
    }

    /// What can be wrong with it by itself.
    pub(super) fn check(&self) -> Result<(), AnnounceError> {
        if self.version > VERSION_MAX {
            return Err(AnnounceError::TooLarge { version: self.version });
        }
        match &self.label {
            Some(label) if version_of_label(label) != Some(self.version) => {
                Err(AnnounceError::BadLabel { label: label.clone(), version: self.version })
            }
            _ => Ok(()),
        }
    }
}

/// The number at the end of a label: 42 of "42", "step-42" and "v42".
pub fn version_of_label(label: &str) -> Option<u64> {
    let digits_start = label.trim_end_matches(|character: char| character.is_ascii_digit()).len();
    label[digits_start..].parse().ok()
}

/// What became of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It is the newest now.
    Taken,
    /// It was taken before; if servers could not be updated to it, they will be tried again.
    Again,
}

/// Why an announcement is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// Versions rise.
    #[error("version={version} is not newer than announced={announced}")]
    NotNewer {
        /// What was said.
        version: u64,
        /// The newest that is known.
        announced: u64,
    },
    /// One number cannot stand for two sets of weights.
    #[error("version={version} was announced before, with another label, path or payload")]
    Differs {
        /// What was said, and is known.
        version: u64,
    },
    /// Servers report labels, and the version is read back from them.
    #[error("label={label:?} does not end in version={version}")]
    BadLabel {
        /// What was said.
        label: String,
        /// What it has to end in.
        version: u64,
    },
    /// Rows have no room for it.
    #[error("version={version} is above {VERSION_MAX}")]
    TooLarge {
        /// What was said.
        version: u64,
    },
}

impl AnnounceError {
    /// Always whoever announces has to do something else.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Client
    }
}
