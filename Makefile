# Every target works on a fresh clone on a machine with Rust, make and a C compiler.

.POSIX:
PREFIX = /usr/local
DESTDIR =
.PHONY: help demo published test check instructions tools fresh install uninstall tarball deb rpm sbom \
	deb-tools rpm-tools sbom-tools musl aarch64 container release-check

help:
	@echo 'make demo    build Forebay, compare five ways of serving one Perl script, write the report'
	@echo 'make published  measure published tables again: about 90 minutes; QUICK=1: about 15'
	@echo 'make test    install the servers that the tests talk to, where possible, and run the tests'
	@echo 'make check   formatting, lints, documentation, manual, licences: what a change must pass'
	@echo 'make instructions  count the instructions of a request: none may take 2 % more than is recorded'
	@echo 'make deb     a package for Debian and Ubuntu, in target/; make rpm: for Fedora and others'
	@echo 'make tarball   an archive, in target/; make musl: of a static program; make aarch64: for this processor'
	@echo 'make sbom    the list of crates in the program, in the format of CycloneDX, in target/'
	@echo 'make container   an image with a static program, with buildah'
	@echo 'make release-check   as root, by hand before a release: packages, archives, container, two builds with the same bytes'
	@echo 'make install PREFIX=/usr/local DESTDIR=   after a release build; make uninstall: the opposite'
	@echo 'make tools   install what "make check" needs'
	@echo 'make fresh   as root: "make demo" and "make test" in a minimal Debian, to find what they lack'

demo:
	@echo 'Building Forebay with the profile "demo": quicker to build, but without the optimisation of a release'
	cargo build --profile demo --locked --package forebay
	"$${CARGO_TARGET_DIR:-target}"/demo/forebay compare \
		examples/cgi-or-persistent/compare.toml --out forebay-report
	@echo "The report is in $$PWD/forebay-report"

deb: deb-tools
rpm: rpm-tools
deb rpm tarball:
	@BINARY=$$(scripts/release-build) && export BINARY && scripts/package $@

sbom: sbom-tools
	@scripts/package sbom

deb-tools rpm-tools sbom-tools:
	@tool=$@; scripts/install-tools "$${tool%-tools}"

musl:
	@BINARY=$$(scripts/release-build x86_64-unknown-linux-musl) && export BINARY && scripts/package tarball

aarch64:
	@BINARY=$$(scripts/release-build aarch64-unknown-linux-gnu) && export BINARY && scripts/package tarball

container:
	@scripts/container

# Takes too long for CI: it builds five release programs.
release-check: deb-tools rpm-tools sbom-tools
	BINARY=$$(scripts/release-build) && export BINARY && scripts/test-packages deb make tarball rpm
	for target in x86_64-unknown-linux-musl aarch64-unknown-linux-gnu; do \
		BINARY=$$(scripts/release-build $$target) && export BINARY && \
		archive=$$(scripts/package tarball) && scripts/test-archive "$$archive" || exit 1; \
	done
	scripts/test-container
	scripts/reproducible --release

# Builds nothing, because root usually has no Rust.
install uninstall:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/package $@

published:
	cargo build --release --package forebay
	examples/published/run $${QUICK:+--quick}

test:
	@scripts/test

check:
	cargo fmt --all --check
	scripts/check-links
	scripts/check-subjects
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --package forebay --no-default-features --features serve --locked -- -D warnings
	cargo clippy --package forebay --no-default-features --features bench,import --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked
	cargo build --package forebay --locked
	scripts/reference "$${CARGO_TARGET_DIR:-target}"/debug/forebay --check
	PATH="$$PWD/target/tools/bin:$$PATH"; export PATH; \
	for tool in cargo-deny mdbook; do \
		command -v $$tool >/dev/null || { \
			echo "$$tool is missing: \"make tools\" installs it" >&2; exit 1; }; \
	done; \
	mdbook build docs && \
	cargo deny --locked check licenses bans sources

instructions:
	@scripts/instructions

tools:
	@scripts/install-tools

fresh:
	@scripts/fresh
