//! The frames that a client sends over its socket.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::socket::Socket;

/// Sends frames on the sender's own task, as far as the socket accepts them immediately. [`Self::drain`]
/// sends the rest.
///
/// The outbox itself does not limit the number of waiting frames, because leases and regions are given back
/// in `drop`, which cannot wait. This number is limited by the calls in progress, and by the leases and
/// regions that the client held.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: Arc<Socket>,
    /// The frames that are still to be sent. `None` if the outbox is closed.
    left: Mutex<Option<Left>>,
    is_left: Notify,
}

#[derive(Debug, Default)]
struct Left {
    frames: VecDeque<Vec<u8>>,
    /// The number of bytes of the first frame that were already sent.
    sent: usize,
}

impl Outbox {
    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self { socket, left: Mutex::new(Some(Left::default())), is_left: Notify::new() }
    }

    /// Sends a frame now or later. Returns `false` if the outbox is closed.
    pub(super) fn send(&self, frame: Vec<u8>) -> bool {
        let mut left = self.left.lock();
        let Some(left) = left.as_mut() else { return false };
        left.frames.push_back(frame);
        if left.frames.len() > 1 {
            return true;
        }
        // An error is ignored here, because `drain` will get it again.
        if !matches!(left.write(&self.socket), Ok(true)) {
            self.is_left.notify_one();
        }
        true
    }

    /// Sends waiting frames until the socket returns an error.
    pub(super) async fn drain(&self) -> io::Result<()> {
        loop {
            self.is_left.notified().await;
            self.flush().await?;
        }
    }

    /// Sends the frames that are waiting now.
    pub(super) async fn flush(&self) -> io::Result<()> {
        loop {
            let is_empty = match self.left.lock().as_mut() {
                Some(left) => left.write(&self.socket)?,
                None => true,
            };
            if is_empty {
                return Ok(());
            }
            self.socket.writable().await?;
        }
    }

    /// Drops the waiting frames. From now on, nothing is sent.
    pub(super) fn close(&self) {
        *self.left.lock() = None;
    }
}

impl Left {
    /// Sends as much as the socket accepts now. Returns whether everything was sent.
    fn write(&mut self, socket: &Socket) -> io::Result<bool> {
        while let Some(frame) = self.frames.front() {
            match socket.send_now(&frame[self.sent..], &[]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.sent == frame.len() {
                self.frames.pop_front();
                self.sent = 0;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::super::frame::{FrameReader, encode};
    use super::*;

    fn pair() -> (Arc<Socket>, Arc<Socket>) {
        let (left, right) = UnixStream::pair().unwrap();
        (Arc::new(Socket::new(left).unwrap()), Arc::new(Socket::new(right).unwrap()))
    }

    #[tokio::test]
    async fn frames_that_the_socket_does_not_take_at_once_leave_in_their_order() {
        let (left, right) = pair();
        let outbox = Outbox::new(left);
        let tail = vec![3; 200_000];
        for number in 0..50 {
            assert!(outbox.send(encode(&number, &tail).unwrap()));
        }
        let mut reader = FrameReader::new(right, false);
        let reading = async {
            for number in 0..50 {
                let frame = reader.next().await.unwrap().unwrap();
                assert_eq!(
                    (frame.message.as_ref(), frame.tail.len()),
                    (number.to_string().as_bytes(), tail.len())
                );
            }
        };
        tokio::select! {
            ended = outbox.drain() => panic!("{ended:?}"),
            () = reading => {}
        }
        outbox.close();
        assert!(!outbox.send(encode(&50, &[]).unwrap()));
    }

    #[tokio::test]
    async fn a_closed_socket_is_an_error_of_the_drain() {
        let (left, right) = pair();
        let outbox = Outbox::new(left);
        drop(right);
        outbox.send(encode(&1, &[]).unwrap());
        assert!(outbox.drain().await.is_err());
    }
}
