// Finds a number for which the SHA-256 of the task, a dot and the number begins with enough zero
// bits. SubtleCrypto is missing on pages without TLS, so the hash is computed here. The text fits
// one block, and only the first word of the hash matters.
(function () {
  "use strict";
  var place = document.getElementById("task");
  var task = place.getAttribute("data-task") + ".";
  var bits = Number(place.getAttribute("data-bits"));
  if (!bits) return;
  if (!navigator.cookieEnabled) {
    place.textContent = "This site needs cookies to remember that it has checked your browser.";
    return;
  }
  var H = [], K = [], found = 0;
  function fraction(x) { return (x - Math.floor(x)) * 4294967296 | 0; }
  for (var n = 2; found < 64; n++) {
    var isPrime = true;
    for (var d = 2; d * d <= n; d++) if (n % d === 0) isPrime = false;
    if (!isPrime) continue;
    H[found] = fraction(Math.pow(n, 1 / 2));
    K[found++] = fraction(Math.pow(n, 1 / 3));
  }
  function rotate(x, by) { return x >>> by | x << 32 - by; }
  function firstWord(text) {
    var w = [], i;
    for (i = 0; i < 16; i++) w[i] = 0;
    for (i = 0; i < text.length; i++) w[i >> 2] |= text.charCodeAt(i) << 24 - i % 4 * 8;
    w[i >> 2] |= 128 << 24 - i % 4 * 8;
    w[15] = 8 * text.length;
    var a = H[0], b = H[1], c = H[2], d = H[3], e = H[4], f = H[5], g = H[6], h = H[7];
    for (i = 0; i < 64; i++) {
      if (i > 15) {
        var x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >>> 3) +
          (rotate(y, 17) ^ rotate(y, 19) ^ y >>> 10) | 0;
      }
      var t = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (e & f ^ ~e & g) + K[i] + w[i] | 0;
      var u = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + (a & b ^ a & c ^ b & c) | 0;
      h = g; g = f; f = e; e = d + t | 0; d = c; c = b; b = a; a = t + u | 0;
    }
    return a + H[0] >>> 0;
  }
  var number = 0;
  function work() {
    for (var until = Date.now() + 40; Date.now() < until;) {
      for (var i = 0; i < 500; i++) {
        if (firstWord(task + number) >>> 32 - bits === 0) {
          // Only the query, because a path that begins with two slashes would be another site.
          location.replace((location.search || "?") + (location.search.length > 1 ? "&" : "") +
            "forebay-challenge=" + task + number + location.hash);
          return;
        }
        number++;
      }
    }
    setTimeout(work, 0);
  }
  work();
})();
