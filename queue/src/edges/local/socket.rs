//! A connected Unix socket that wakes its task when bytes arrive, and not when the peer reads.
//!
//! Tokio's own `UnixStream` also waits for free space in the send buffer. The operating system reports free
//! space whenever the peer reads, so each message would wake the task that sent it. That would cost one more
//! switch between threads at both ends. This socket waits for free space only while a write needs it.

use std::collections::VecDeque;
use std::io::{self, Error, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The maximum number of descriptors that one message may carry.
pub(super) const DESCRIPTORS_MAX: usize = 32;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: AsyncFd<UnixStream>,
}

impl Socket {
    /// Makes a socket from a tokio stream.
    pub(super) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        Ok(Self { stream: registered(stream.into_std()?, Interest::READABLE)? })
    }

    /// Sends as many bytes as the socket accepts now. Returns the number of sent bytes. The descriptors are
    /// sent with the first byte.
    pub(super) fn send_now(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::new(ErrorKind::InvalidData, "too many descriptors for one message"));
        }
        let slices = [IoSlice::new(bytes)];
        Ok(sendmsg(self.stream.get_ref(), &slices, &mut control, SendFlags::NOSIGNAL)?)
    }

    /// Waits until the socket accepts bytes.
    pub(super) async fn writable(&self) -> io::Result<()> {
        // The registration of a duplicate begins with the present state, so free space is never missed.
        let duplicate = self.stream.get_ref().try_clone()?;
        let waiting = registered(duplicate, Interest::WRITABLE)?;
        waiting.writable().await.map(drop)
    }

    /// Receives bytes, waiting for them, and appends received descriptors to `descriptors`, if there are any.
    /// Without `descriptors`, the operating system drops the descriptors that the peer sends. Returns 0 at
    /// the end of the stream.
    ///
    /// Cancel-safe.
    pub(super) async fn receive(
        &self,
        into: &mut [u8],
        mut descriptors: Option<&mut VecDeque<OwnedFd>>,
    ) -> io::Result<usize> {
        loop {
            // A read that ends where descriptors begin is short, although more bytes may have arrived. So
            // only a read that would block clears the readiness.
            let mut ready = self.stream.readable().await?;
            match ready.try_io(|stream| receive_now(stream.get_ref(), into, descriptors.as_deref_mut())) {
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }
}

#[expect(unsafe_code, reason = "tokio cannot check that the descriptor stays the same")]
fn registered(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the stream owns its descriptor, which is open and stays the same until the stream is dropped,
    // and the result owns the stream.
    Ok(unsafe { AsyncFd::register_with_interest(stream, interest) }?)
}

fn receive_now(
    stream: &UnixStream,
    into: &mut [u8],
    descriptors: Option<&mut VecDeque<OwnedFd>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let space = if descriptors.is_some() { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let Some(descriptors) = descriptors else { return Ok(received.bytes) };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Error::other("descriptors were lost: this process may not open more files"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let (left, right) = tokio::net::UnixStream::pair().unwrap();
        (Socket::new(left).unwrap(), Socket::new(right).unwrap())
    }

    #[tokio::test]
    async fn a_full_socket_has_room_after_its_peer_reads() {
        let (left, right) = pair();
        while left.send_now(&[7; 10_000], &[]).is_ok() {}
        let waiting = left.writable();
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
        let mut bytes = vec![0; 1 << 20];
        right.receive(&mut bytes, None).await.unwrap();
        waiting.await.unwrap();
        left.send_now(&[7], &[]).unwrap();
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_does_not_wake_the_sender() {
        let (left, right) = pair();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut answer = [0; 8];
        let mut waits = Box::pin(left.receive(&mut answer, None));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let mut bytes = [0; 100];
        for _ in 0..10 {
            left.send_now(&[1; 100], &[]).unwrap();
            assert_eq!(right.receive(&mut bytes, None).await.unwrap(), 100);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        right.send_now(&[1], &[]).unwrap();
        assert_eq!(waits.await.unwrap(), 1);
    }
}
