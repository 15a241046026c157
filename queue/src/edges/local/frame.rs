//! Frames on a Unix socket, and the descriptors that are sent with them.
//!
//! ```text
//!   u32 bytes of the message, little-endian
//!   u32 bytes of the tail, little-endian
//!   message: JSON
//!   tail: Arrow IPC, or nothing
//! ```

use std::collections::VecDeque;
use std::io::{self, Error, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::Serialize;

use super::socket::Socket;

/// The maximum size of a frame, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;
const HEAD_BYTES: usize = 8;
const READ_BYTES: usize = 64 << 10;

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, reason.into())
}

/// A received frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) message: Bytes,
    pub(super) tail: Bytes,
}

/// Encodes a frame.
pub(super) fn encode(message: &impl Serialize, tail: &[u8]) -> io::Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(HEAD_BYTES + 256 + tail.len());
    frame.resize(HEAD_BYTES, 0);
    serde_json::to_writer(&mut frame, message)?;
    let message_length = frame.len() - HEAD_BYTES;
    if frame.len() + tail.len() > FRAME_BYTES_MAX {
        return Err(invalid(format!(
            "expected a frame of at most bytes_max={FRAME_BYTES_MAX}, found a longer one"
        )));
    }
    frame[..4].copy_from_slice(&(message_length as u32).to_le_bytes());
    frame[4..HEAD_BYTES].copy_from_slice(&(tail.len() as u32).to_le_bytes());
    frame.extend_from_slice(tail);
    Ok(frame)
}

/// Sends the bytes of a frame. The descriptors are sent together with the first bytes.
///
/// Not cancel-safe: half a frame may have been sent.
pub(super) async fn send(socket: &Socket, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.send_now(&bytes[sent..], if sent == 0 { descriptors } else { &[] }) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads frames, and keeps the received descriptors in the order in which they were sent.
#[derive(Debug)]
pub(super) struct FrameReader {
    socket: Arc<Socket>,
    buffer: BytesMut,
    scratch: Box<[u8]>,
    descriptors: VecDeque<OwnedFd>,
    /// Whether descriptors are accepted. A server accepts none: if a client sends descriptors, the operating
    /// system drops them.
    takes_descriptors: bool,
}

impl FrameReader {
    pub(super) fn new(socket: Arc<Socket>, takes_descriptors: bool) -> Self {
        let scratch = vec![0; READ_BYTES].into_boxed_slice();
        Self { socket, buffer: BytesMut::new(), scratch, descriptors: VecDeque::new(), takes_descriptors }
    }

    /// Returns the next received descriptor.
    pub(super) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.descriptors
            .pop_front()
            .ok_or_else(|| invalid("expected a descriptor for each region, found fewer"))
    }

    /// Returns the next frame, or `None` if the peer has closed the connection between two frames.
    ///
    /// Cancel-safe: the part of a frame that has arrived is kept for the next call.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            let descriptors = self.takes_descriptors.then_some(&mut self.descriptors);
            match self.socket.receive(&mut self.scratch, descriptors).await? {
                0 if self.buffer.is_empty() => return Ok(None),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend_from_slice(&self.scratch[..count]),
            }
        }
    }

    fn whole(&mut self) -> io::Result<Option<Frame>> {
        let number = |at: usize| {
            let bytes = self.buffer.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        let (Some(message), Some(tail)) = (number(0), number(4)) else { return Ok(None) };
        let length = HEAD_BYTES + message + tail;
        if length > FRAME_BYTES_MAX {
            return Err(invalid(format!(
                "expected a frame of at most bytes_max={FRAME_BYTES_MAX}, found bytes={length}"
            )));
        }
        if self.buffer.len() < length {
            return Ok(None);
        }
        let frame = self.buffer.split_to(length).freeze();
        Ok(Some(Frame {
            message: frame.slice(HEAD_BYTES..HEAD_BYTES + message),
            tail: frame.slice(HEAD_BYTES + message..),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let (left, right) = UnixStream::pair().unwrap();
        (Socket::new(left).unwrap(), Socket::new(right).unwrap())
    }

    #[tokio::test]
    async fn frames_arrive_whole_with_their_descriptors() {
        let (left, right) = pair();
        let mut reader = FrameReader::new(Arc::new(right), true);
        let (file, _mapping) = crate::mapped::create(4096).unwrap();
        let large = vec![7; 300_000];
        let first = encode(&"first", &[]).unwrap();
        let second = encode(&"second", &large).unwrap();
        let sending = async {
            send(&left, &first, &[file.as_fd(), file.as_fd()]).await.unwrap();
            send(&left, &second, &[file.as_fd()]).await.unwrap();
            drop(left);
        };
        let reading = async {
            let frame = reader.next().await.unwrap().unwrap();
            assert_eq!((frame.message.as_ref(), frame.tail.len()), (b"\"first\"".as_slice(), 0));
            let frame = reader.next().await.unwrap().unwrap();
            assert_eq!(frame.tail, large);
            assert!(reader.next().await.unwrap().is_none());
            for _ in 0..3 {
                reader.descriptor().unwrap();
            }
            assert!(reader.descriptor().is_err());
        };
        tokio::join!(sending, reading);
    }

    #[tokio::test]
    async fn half_a_frame_and_one_that_is_too_long_are_errors() {
        for bytes in [vec![9, 0, 0, 0, 0, 0, 0, 0, 1], vec![0xff; 8]] {
            let (left, right) = pair();
            send(&left, &bytes, &[]).await.unwrap();
            drop(left);
            assert!(FrameReader::new(Arc::new(right), false).next().await.is_err());
        }
    }
}
