//! Where the processes of a server's host find its shared memory.

use serde::{Deserialize, Serialize};

/// The socket of a server for the processes of its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPlace {
    /// An absolute path, or `@NAME` for a socket without a file.
    pub socket: String,
    /// The number that identifies this run of the server. If the server behind a socket reports another
    /// number, the socket belongs to another server, or to another host that has a socket of the same name.
    #[serde(with = "hexadecimal")]
    pub life: u64,
}

/// The answer of `GET /v1/local`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LocalAnswer {
    /// Absent if the server has no socket, or if clients read rows directly from storage units.
    pub(crate) place: Option<LocalPlace>,
}

/// Numbers as text, because many languages read JSON numbers with a precision of 53 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16)
            .map_err(|_| de::Error::custom(format!("expected 16 hexadecimal digits, found {text}")))
    }
}
