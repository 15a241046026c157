use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;

/// What the client reads from bytes that arrive in pieces: the status, the body, and whether the connection
/// can be used again.
async fn read(bytes: &[u8], piece_bytes: usize) -> io::Result<(u16, Vec<u8>, bool)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let uri: Uri = format!("http://{}/x", listener.local_addr()?).parse().unwrap();
    let connecting = Connection::open(&uri, Duration::from_secs(5));
    let (connection, accepted) = tokio::join!(connecting, listener.accept());
    let (connection, mut peer) = (connection?, accepted?.0);
    let writing = async {
        for piece in bytes.chunks(piece_bytes) {
            // The client may have disconnected after an error.
            let _ = peer.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = peer.shutdown().await;
    };
    let reading = async {
        let mut body = connection.read_head().await?;
        let status = body.head.status.as_u16();
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await? {
            bytes.extend_from_slice(piece);
        }
        Ok((status, bytes, body.into_reusable().is_some()))
    };
    tokio::join!(writing, reading).1
}

async fn read_whole(text: &str) -> (u16, String, bool) {
    let whole = read(text.as_bytes(), usize::MAX).await.unwrap();
    for piece_bytes in [1, 3] {
        let pieces = read(text.as_bytes(), piece_bytes).await.unwrap();
        assert_eq!((pieces.0, &pieces.1), (whole.0, &whole.1), "in pieces of {piece_bytes}: {text:?}");
    }
    (whole.0, String::from_utf8(whole.1).unwrap(), whole.2)
}

fn answer(status: u16, body: &str, reusable: bool) -> (u16, String, bool) {
    (status, body.to_owned(), reusable)
}

#[tokio::test]
async fn bodies_are_framed_as_the_head_says() {
    let length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(read_whole(length).await, answer(200, "hello", true));
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nt: 1\r\n\r\n";
    assert_eq!(read_whole(chunked).await, answer(200, "hello", true));
    let until_close = "HTTP/1.1 200 OK\r\n\r\nhello";
    assert_eq!(read_whole(until_close).await, answer(200, "hello", false));
    let empty = "HTTP/1.1 204 No Content\r\n\r\n";
    assert_eq!(read_whole(empty).await, answer(204, "", true));
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno";
    assert_eq!(read_whole(interim).await, answer(404, "no", true));
}

#[tokio::test]
async fn a_connection_is_not_used_again_where_its_state_is_in_doubt() {
    for head in ["HTTP/1.0 200 OK\r\n", "HTTP/1.1 200 OK\r\nconnection: foo, Close\r\n"] {
        let text = format!("{head}content-length: 2\r\n\r\nok");
        assert_eq!(read_whole(&text).await, answer(200, "ok", false), "{head}");
    }
    let both =
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
    assert_eq!(read_whole(both).await, answer(200, "a", false));
    let more = read(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more", usize::MAX).await.unwrap();
    assert_eq!((more.1, more.2), (b"ok".to_vec(), false), "bytes without a request");
}

#[tokio::test]
async fn what_is_no_answer_is_an_error_with_words() {
    for (text, words) in [
        ("", "before the answer's head"),
        ("HTTP/1.1 200 OK\r\ncontent-le", "before the answer's head"),
        ("SSH-2.0-OpenSSH\r\n", "not HTTP"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", "in the middle"),
        ("HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", "content-length"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", "two different"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", "gzip"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "size"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhell\r\n", "longer than its size"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", "in the middle"),
    ] {
        let error = read(text.as_bytes(), usize::MAX).await.expect_err(text);
        assert!(error.to_string().contains(words), "{text:?}: {error}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(BUFFER_BYTES));
    let error = read(endless.as_bytes(), usize::MAX).await.unwrap_err();
    assert!(error.to_string().contains("64 KiB"), "{error}");
}

#[tokio::test]
async fn long_bodies_come_through_in_both_framings() {
    let body: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    let mut length = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    length.extend(&body);
    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(70_001) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    for bytes in [length, chunked] {
        for piece_bytes in [4_099, usize::MAX] {
            assert!(read(&bytes, piece_bytes).await.unwrap().1 == body);
        }
    }
}

#[tokio::test]
async fn an_answer_that_comes_in_pieces_holds_no_buffer_between_them() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let uri: Uri = format!("http://{}/x", listener.local_addr().unwrap()).parse().unwrap();
    let connecting = Connection::open(&uri, Duration::from_secs(5));
    let (connection, accepted) = tokio::join!(connecting, listener.accept());
    let mut peer = accepted.unwrap().0;
    peer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n").await.unwrap();
    let mut body = connection.unwrap().read_head().await.unwrap();
    assert_eq!(body.next().await.unwrap(), Some(&b"he"[..]));
    let waiting = tokio::time::timeout(Duration::from_millis(50), body.next()).await;
    assert!(waiting.is_err(), "nothing has come");
    assert_eq!(body.input.buffer.capacity(), 0);
    peer.write_all(b"3\r\nllo\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(body.next().await.unwrap(), Some(&b"llo"[..]));
    assert_eq!(body.next().await.unwrap(), None);
}
