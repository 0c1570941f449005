//! Sends a request while its reply is read.

use std::pin::Pin;

use forebay_net::fault::Fault;

/// Sends and reads until the reply has ended. Returns the result of reading if everything was sent
/// before the reply ended. Returns `None` if the reply is complete but sending failed or has not
/// ended. If both fail, returns the send error.
pub async fn send_and_read<T>(
    mut upload: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    mut download: Pin<&mut impl Future<Output = Result<T, Fault>>>,
) -> Result<Option<T>, Fault> {
    // Send and read at the same time. An application may answer before it has read everything. It
    // may stop reading until Forebay reads its output, or read nothing at all.
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
