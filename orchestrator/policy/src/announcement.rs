//! Checks of announcements, and the reasons for refusing an announcement.

use rolldock_dispatch::version_of_label;
use rolldock_loadbalancer::update::Announcement;

/// Rows and journals store versions as signed integers of 64 bits.
const VERSION_MAX: u64 = i64::MAX as u64;

/// Checks an announcement without regard to earlier ones.
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

/// The result of an announcement that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// The announced version is now the newest version.
    Taken,
    /// The same announcement was accepted before. If no server could be updated to it, the update is tried
    /// again.
    Again,
}

/// Why an announcement is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// The version is older than the newest one, or equals the version that the run began with.
    #[error("version={version} is not newer than announced={announced}")]
    NotNewer {
        /// The announced version.
        version: u64,
        /// The newest version that was announced before.
        announced: u64,
    },
    /// The version was announced before with a different label, path or payload. One number cannot name two
    /// sets of weights.
    #[error("version={version} was announced before, with another label, path or payload")]
    Differs {
        /// The version of both announcements.
        version: u64,
    },
    /// The label does not end in the version. Servers report labels, and the version is read back from them.
    #[error("label={label:?} does not end in version={version}")]
    BadLabel {
        /// The announced label.
        label: String,
        /// The version that the label must end in.
        version: u64,
    },
    /// The version is too large for a row.
    #[error("version={version} is above {VERSION_MAX}")]
    TooLarge {
        /// The announced version.
        version: u64,
    },
}
