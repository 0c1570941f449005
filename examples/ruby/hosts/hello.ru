# A reply of 4 kB.
BODY = ('Hello, World! ' * 292 + "Bye.\n").freeze
HEAD = { 'content-type' => 'text/plain', 'content-length' => BODY.bytesize.to_s }.freeze

run ->(_env) { [200, HEAD.dup, [BODY]] }
