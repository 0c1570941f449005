//! Derives of `forebay-conf`: a struct or an enum is the only declaration of a table of keys or of
//! a choice. The reader, the messages and the schema come from its fields and its comments.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, Field, Fields, GenericArgument, Lit,
    LitStr, Meta, Path, PathArguments, Token, Type, parse_macro_input,
};

/// Derives `Table`: the struct is read from a table, each field from the key of its name.
///
/// `#[table(name = "Jwt")]` is the name in the schema; by default, it is that of the struct.
/// `#[table(short = "rate")]` names the key that a text in place of the table stands for.
/// `#[table(extend = json!({...}))]` is added to the schema.
/// `#[table(check = path)]` names a `fn(&mut Self, &Given<'_, '_>) -> Resolution<()>`, a rule over
/// several keys.
/// `#[table(begin = path)]` names a `fn(&Cx<'_>)` that is called before the first key is read.
/// `#[table(default)]` derives `Default` from the defaults of the keys.
///
/// A field of type `Option` may be left out. Any other field needs one of these attributes:
/// - `#[key(default = "10s")]`: the value as typed in a configuration. The documentation shows it.
/// - `#[key(default)]`: the value of `Default`. The comment of the field says what it means.
/// - `#[key(required = "\"10/s\"")]`: the key has to be given, as in this example.
///
/// `#[key(none)]`: the field is no key. It has the value of `Default`, which a check may change.
/// `#[key(name = "type")]` is the key, if it is not the name of the field.
/// `#[key(schema = path)]` is the schema of the values, if it is not that of their form.
/// `#[key(as = Size)]` is how the value is written; by default, as its type is.
/// `#[key(check = path)]` names a `fn(&T, &Range<usize>) -> Resolution<()>` for a typed value.
#[proc_macro_derive(Table, attributes(table, key))]
pub fn table(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive_table(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Derives `Choice`: the value is one of several texts. Each is the name of a variant in lower case
/// with hyphens, or the text in its attribute: `#[key("1.2")]`. Further texts there mean the same.
#[proc_macro_derive(Choice, attributes(key))]
pub fn choice(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive_choice(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn derive_table(input: &DeriveInput) -> Result<Tokens, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(input, "a table is a struct"));
    };
    let (ident, about) = (&input.ident, comment(&input.attrs));
    let (mut name, mut short, mut check) = (ident.to_string(), quote!(None), None);
    let (mut extend, mut default, mut begin) = (Tokens::new(), Tokens::new(), Tokens::new());
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("table")) {
        attribute.parse_nested_meta(|meta| {
            match meta.path.require_ident()?.to_string().as_str() {
                "name" => name = meta.value()?.parse::<LitStr>()?.value(),
                "short" => {
                    let key: LitStr = meta.value()?.parse()?;
                    short = quote!(Some(#key));
                }
                "default" => {
                    default = quote! {
                        impl Default for #ident {
                            fn default() -> Self {
                                crate::key::default_table()
                            }
                        }
                    };
                }
                "check" => check = Some(meta.value()?.parse::<Path>()?),
                "begin" => {
                    let path: Path = meta.value()?.parse()?;
                    begin = quote! {
                        fn begin(cx: &crate::key::Cx<'_>) {
                            #path(cx)
                        }
                    };
                }
                "extend" => {
                    let more: Expr = meta.value()?.parse()?;
                    extend = quote! {
                        fn extend(schema: &mut schemars::Schema) {
                            let serde_json::Value::Object(more) = #more else { return };
                            schema.ensure_object().extend(more);
                        }
                    };
                }
                _ => return Err(meta.error("not an attribute of a table")),
            }
            Ok(())
        })?;
    }
    let (others, fields): (Vec<_>, Vec<_>) = data.fields.iter().partition(|field| is_no_key(field));
    let keys = fields.into_iter().map(Key::of).collect::<Result<Vec<_>, _>>()?;
    let others = others.iter().map(|field| {
        let ident = &field.ident;
        quote!(let #ident = Some(Default::default());)
    });
    let rows = keys.iter().map(Key::row);
    let reads = keys.iter().enumerate().map(|(at, key)| key.read(at));
    let idents: Vec<_> = data.fields.iter().map(|field| &field.ident).collect();
    let (mutable, check) = match check {
        Some(check) => (quote!(mut), quote!(keys.finish(|given| #check(&mut table, given))?;)),
        None => (Tokens::new(), Tokens::new()),
    };
    Ok(quote! {
        impl crate::key::Table for #ident {
            const NAME: &'static str = #name;
            const ABOUT: &'static str = #about;
            const KEYS: &'static [crate::key::Key] = &[#(#rows),*];
            const SHORT: Option<&'static str> = #short;

            #begin

            fn take(keys: &mut crate::key::Keys<'_, '_>) -> Option<Self> {
                #(#reads)*
                #(#others)*
                let #mutable table = Self { #(#idents: #idents?),* };
                #check
                Some(table)
            }

            #extend
        }

        #default

        impl crate::key::Form for #ident {
            fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::key::table_schema::<Self>(generator)
            }

            fn read(
                node: &crate::key::Node<'_>,
                cx: &crate::key::Cx<'_>,
            ) -> Result<Self, crate::error::Problem> {
                crate::key::read_table(node, cx)
            }
        }
    })
}

/// Returns true if the field has the attribute `#[key(none)]`.
fn is_no_key(field: &Field) -> bool {
    let is_none = |attribute: &Attribute| {
        attribute.path().is_ident("key")
            && attribute.parse_args::<Path>().is_ok_and(|path| path.is_ident("none"))
    };
    field.attrs.iter().any(is_none)
}

/// What the attributes of a field say.
struct Key<'a> {
    field: &'a Field,
    name: String,
    /// The type of the value: `T` for a field of type `Option<T>`.
    value: &'a Type,
    form: Type,
    is_optional: bool,
    /// The default as an expression, or `None` for that of the type.
    default: Option<Option<Expr>>,
    required: Option<Expr>,
    check: Option<Path>,
    /// A function that makes the schema, in place of that of the form.
    schema: Option<Path>,
}

impl Key<'_> {
    fn of(field: &Field) -> Result<Key<'_>, Error> {
        let ident = field.ident.as_ref().ok_or_else(|| Error::new_spanned(field, "no name"))?;
        let inner = inner_of_option(&field.ty);
        let value = inner.unwrap_or(&field.ty);
        let mut key = Key {
            field,
            name: ident.to_string().trim_start_matches("r#").to_owned(),
            value,
            form: value.clone(),
            is_optional: inner.is_some(),
            default: None,
            required: None,
            check: None,
            schema: None,
        };
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("key")) {
            attribute.parse_nested_meta(|meta| {
                // `as` is a keyword, so `parse_nested_meta` gives it as a path only.
                let name = meta.path.segments.last().map(|last| last.ident.to_string());
                match name.as_deref() {
                    Some("as") => key.form = meta.value()?.parse()?,
                    Some("default") if meta.input.peek(Token![=]) => {
                        key.default = Some(Some(meta.value()?.parse()?));
                    }
                    Some("default") => key.default = Some(None),
                    Some("required") => key.required = Some(meta.value()?.parse()?),
                    Some("check") => key.check = Some(meta.value()?.parse()?),
                    Some("schema") => key.schema = Some(meta.value()?.parse()?),
                    Some("name") => key.name = meta.value()?.parse::<LitStr>()?.value(),
                    _ => return Err(meta.error("not an attribute of a key")),
                }
                Ok(())
            })?;
        }
        let ways = usize::from(key.is_optional)
            + usize::from(key.default.is_some())
            + usize::from(key.required.is_some());
        if ways != 1 {
            let message = "a key is an `Option`, or has a `default`, or is `required`";
            return Err(Error::new_spanned(field, message));
        }
        Ok(key)
    }

    /// The row of the key in the table `KEYS`.
    fn row(&self) -> Tokens {
        let (name, form, about) = (&self.name, &self.form, comment(&self.field.attrs));
        let default = match &self.default {
            Some(Some(value)) => {
                let value = toml(value);
                quote!(Some(#value))
            }
            _ => quote!(None),
        };
        let required = match &self.required {
            Some(example) => quote!(Some(#example)),
            None => quote!(None),
        };
        let value = self.value;
        let schema = match &self.schema {
            Some(schema) => quote!(#schema),
            None => quote!(<#form as crate::key::Form<#value>>::schema),
        };
        quote! {
            crate::key::Key {
                name: #name,
                about: #about,
                schema: #schema,
                default: #default,
                required: #required,
            }
        }
    }

    /// The statement that reads the key into a variable of the field's name, an `Option` that is
    /// `None` if there is a problem.
    fn read(&self, at: usize) -> Tokens {
        let (ident, value, form) = (&self.field.ident, self.value, &self.form);
        let check = match &self.check {
            Some(check) => quote!(|value, span| #check(value, span)),
            None => quote!(|_, _| Ok(())),
        };
        let typed = quote!(keys.typed::<#value, #form>(&Self::KEYS[#at], #check));
        let read = match &self.default {
            _ if self.is_optional => typed,
            Some(None) => quote!(#typed.map(Option::unwrap_or_default)),
            _ => quote!(keys.value::<#value, #form>(&Self::KEYS[#at], #check)),
        };
        quote!(let #ident = #read;)
    }
}

fn derive_choice(input: &DeriveInput) -> Result<Tokens, Error> {
    let Data::Enum(data) = &input.data else {
        return Err(Error::new_spanned(input, "a choice is an enum"));
    };
    let (ident, about) = (&input.ident, comment(&input.attrs));
    let name = ident.to_string();
    let mut rows = Vec::new();
    for variant in &data.variants {
        if !matches!(variant.fields, Fields::Unit) {
            return Err(Error::new_spanned(variant, "a variant of a choice has no fields"));
        }
        let mut texts = vec![in_lower_case(&variant.ident.to_string())];
        for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("key")) {
            let all =
                attribute.parse_args_with(Punctuated::<LitStr, Token![,]>::parse_terminated)?;
            texts = all.iter().map(LitStr::value).collect();
        }
        let (variant, about) = (&variant.ident, comment(&variant.attrs));
        let Some((text, others)) = texts.split_first() else {
            return Err(Error::new_spanned(variant, "a value needs a text"));
        };
        rows.push(quote!((Self::#variant, #text, #about, &[#(#others),*])));
    }
    Ok(quote! {
        impl crate::key::Choice for #ident {
            const NAME: &'static str = #name;
            const ABOUT: &'static str = #about;
            const ROWS: &'static [(Self, &'static str, &'static str, &'static [&'static str])] =
                &[#(#rows),*];
        }

        impl crate::key::Form for #ident {
            fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::key::choice_schema::<Self>(generator)
            }

            fn read(
                node: &crate::key::Node<'_>,
                _: &crate::key::Cx<'_>,
            ) -> Result<Self, crate::error::Problem> {
                crate::key::read_choice(node)
            }
        }
    })
}

/// The name of a variant in lower case, with hyphens between its words.
fn in_lower_case(name: &str) -> String {
    let letter = |(at, letter): (usize, char)| {
        let hyphen = if at > 0 && letter.is_ascii_uppercase() { "-" } else { "" };
        format!("{hyphen}{}", letter.to_ascii_lowercase())
    };
    name.chars().enumerate().map(letter).collect()
}

/// The text of a doc comment, on one line.
fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Returns `T` of `Option<T>`.
fn inner_of_option(kind: &Type) -> Option<&Type> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}

/// A default as TOML.
fn toml(value: &Expr) -> String {
    match value {
        Expr::Array(all) => {
            format!("[{}]", all.elems.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        _ => quote!(#value).to_string(),
    }
}
