//! Sends a request while its reply is read.

use std::pin::Pin;

use forebay_net::fault::Fault;

/// Sends and reads until the reply has ended. Returns the result of reading if everything was sent
/// before the reply ended. A complete reply outweighs a failure to send. If both fail, the send
/// error counts.
pub async fn send_and_read<T>(
    mut upload: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    mut download: Pin<&mut impl Future<Output = Result<T, Fault>>>,
) -> Result<Option<T>, Fault> {
    // Both run at once, because an application may answer while it still reads. An application may
    // also read no more until its output is read, or not read at all.
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
