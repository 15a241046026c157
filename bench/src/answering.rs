//! A minimal HTTP server for the engines of benchmarks. The server itself costs little, compared with making
//! the answers.

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole answer in JSON.
pub(crate) fn answer(status: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Answers each request on a connection with what `make` returns for its path and its body.
pub(crate) async fn answer_each<A: AsRef<[u8]>>(
    mut stream: TcpStream,
    make: impl Fn(&str, &[u8]) -> anyhow::Result<A>,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = memmem::find(&input, b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        let head = std::str::from_utf8(&input[..head_end])?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let end = head_end + length.map_or(Ok(0), str::parse::<usize>)?;
        while input.len() < end {
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
        stream.write_all(make(&path, &input[head_end..end])?.as_ref()).await?;
        input.drain(..end);
    }
}
