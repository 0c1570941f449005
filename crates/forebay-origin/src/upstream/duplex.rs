//! Sending a request and reading its reply at the same time.

use std::pin::Pin;

use forebay_engine::Fault;

/// Sends and reads until the reply has ended: an application may answer while it still reads, stop
/// reading when nobody takes what it answers, or not read at all. What was read, if all was sent
/// before the reply ended. A reply that came whole makes up for what could not be sent; where
/// neither went well, why sending failed counts.
pub async fn send_and_read<T>(
    mut upload: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    mut download: Pin<&mut impl Future<Output = Result<T, Fault>>>,
) -> Result<Option<T>, Fault> {
    tokio::select! {
        biased;
        sent = &mut upload => match (sent, download.await) {
            (Ok(()), outcome) => outcome.map(Some),
            (Err(_), Ok(_)) => Ok(None),
            (Err(fault), Err(_)) => Err(fault),
        },
        outcome = &mut download => outcome.map(|_| None),
    }
}
