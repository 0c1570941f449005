//! One certificate: account, order, challenges, request.

use std::time::Duration;

use forebay_conf::{Acme, AcmeChallenge};
use forebay_engine::Challenges;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, AuthorizedIdentifier, ChallengeType, Error,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::state::{self, Issued};

/// A whole order takes no longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// How the authority is asked how far it is.
const POLLS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// Has the authority issue a certificate; why it did not.
pub async fn issue(
    acme: &Acme,
    challenge: AcmeChallenge,
    challenges: &Challenges,
) -> Result<Issued, String> {
    let whole = async {
        let account = account(acme).await?;
        order(&account, acme, challenge, challenges).await
    };
    let within = tokio::time::timeout(PATIENCE, whole).await;
    within.unwrap_or_else(|_| Err(format!("{} took too long", acme.directory)))
}

/// The account that was kept, or a new one.
async fn account(acme: &Acme) -> Result<Account, String> {
    let builder = match &acme.ca {
        Some(ca) => Account::builder_with_root(ca),
        None => Account::builder(),
    };
    let unreachable = |error: Error| format!("{}: {}", acme.directory, whole(&error));
    let builder = builder.map_err(unreachable)?;
    if let Some(kept) = state::account(acme)
        && let Ok(credentials) = serde_json::from_str::<AccountCredentials>(&kept)
    {
        return builder.from_credentials(credentials).await.map_err(unreachable);
    }
    let contact: Vec<_> = acme.email.iter().map(|email| format!("mailto:{email}")).collect();
    let contact: Vec<_> = contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) =
        builder.create(&new, acme.directory.clone(), None).await.map_err(unreachable)?;
    let text = serde_json::to_string(&credentials).map_err(|error| error.to_string())?;
    state::save_account(acme, &text)?;
    Ok(account)
}

async fn order(
    account: &Account,
    acme: &Acme,
    challenge: AcmeChallenge,
    challenges: &Challenges,
) -> Result<Issued, String> {
    let failed = |error: Error| whole(&error);
    let names: Vec<_> = acme.names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(failed)?;
    prove(&mut order, challenge, challenges).await?;
    let status = order.poll_ready(&POLLS).await.map_err(failed)?;
    if !matches!(status, OrderStatus::Ready | OrderStatus::Valid) {
        return Err(refusal(&mut order).await);
    }
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let mut params =
        CertificateParams::new(acme.names.clone()).map_err(|error| error.to_string())?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(|error| error.to_string())?;
    order.finalize_csr(request.der()).await.map_err(failed)?;
    let chain = order.poll_certificate(&POLLS).await.map_err(failed)?;
    Ok(Issued { chain, key: key.serialize_pem() })
}

/// Answers a challenge for each name.
async fn prove(
    order: &mut Order,
    by: AcmeChallenge,
    challenges: &Challenges,
) -> Result<(), String> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|error| whole(&error))?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => return Err(format!("an authorization is {status:?}")),
        }
        let kind = match by {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        };
        let lacking = || format!("the authority does not offer {by:?}");
        let mut challenge = authorization.challenge(kind).ok_or_else(lacking)?;
        let key = challenge.key_authorization();
        match by {
            AcmeChallenge::Http01 => {
                challenges.answer_request(&challenge.token, key.as_str().to_owned());
            }
            AcmeChallenge::TlsAlpn01 => {
                let AuthorizedIdentifier { identifier: Identifier::Dns(name), .. } =
                    challenge.identifier()
                else {
                    return Err("the authority asks for what is no name".to_owned());
                };
                show(challenges, name, key.digest().as_ref())?;
            }
        }
        challenge.set_ready().await.map_err(|error| whole(&error))?;
    }
    Ok(())
}

/// Shows a certificate that has `digest` to who looks at `name` (RFC 8737 section 3).
fn show(challenges: &Challenges, name: &str, digest: &[u8]) -> Result<(), String> {
    let failed = |error: rcgen::Error| error.to_string();
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let shown = challenges.answer_handshake(name, certificate.der().clone(), key.into());
    shown.map_err(|error| error.to_string())
}

/// Why the authority did not take the order: what it says of the challenges.
async fn refusal(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        for challenge in &authorization.challenges {
            if let Some(problem) = &challenge.error {
                let name = authorization.identifier();
                return format!("{name}: {problem}");
            }
        }
    }
    "the authority has refused the order".to_owned()
}

/// An error with what it was caused by.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
