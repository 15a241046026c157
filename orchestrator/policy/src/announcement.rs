//! What a trainer says of a new version, and why it may not be taken.

use rolldock_loadbalancer::update::Announcement;

/// Versions are signed integers of 64 bits in rows and journals.
const VERSION_MAX: u64 = i64::MAX as u64;

/// What can be wrong with an announcement by itself.
pub(super) fn check(announcement: &Announcement) -> Result<(), AnnounceError> {
    let Announcement { version, ref label, .. } = *announcement;
    if version > VERSION_MAX {
        return Err(AnnounceError::TooLarge { version });
    }
    if version_of_label(label) != Some(version) {
        return Err(AnnounceError::BadLabel { label: label.to_string(), version });
    }
    Ok(())
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
