//! Sends a request while its reply is read.

use std::pin::Pin;

use forebay_net::fault::Fault;

/// Runs `upload`, which sends a request, and `download`, which reads the reply, until the reply has
/// ended. Returns the result of `download` if `upload` has ended successfully. Returns `None` if
/// the reply is complete, but `upload` has failed or has not ended. Fails if `download` fails. If
/// both fail, returns the error of `upload`.
pub async fn send_and_read<T>(
    mut upload: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    mut download: Pin<&mut impl Future<Output = Result<T, Fault>>>,
) -> Result<Option<T>, Fault> {
    // Send and read at the same time. An application may stop reading until Forebay reads its
    // output. An application may also answer without reading the whole request.
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
