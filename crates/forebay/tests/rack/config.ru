# An application for most tests: it does what the path says. Rack::Lint checks it and the host.
require 'digest'
require 'rack/lint'

PLAIN = { 'content-type' => 'text/plain' }.freeze
NAMES = %w[REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_URI SERVER_PROTOCOL CONTENT_LENGTH
           HTTP_X_THING rack.url_scheme rack.multithread rack.multiprocess].freeze

def plain(*body, status: 200, **fields)
  [status, PLAIN.merge(fields.transform_keys(&:to_s)), body]
end

class Pieces
  def each
    yield 'a'
    yield ''
    yield 'bc'
  end

  def close
    warn 'closed by the host'
  end
end

# Lets the next attempts to start a thread fail, as at a limit on processes.
FAILURES = Queue.new
Thread.singleton_class.prepend(Module.new do
  def new(...)
    raise ThreadError, "can't create Thread: Resource temporarily unavailable" unless FAILURES.empty? || FAILURES.pop.nil?
    super
  end
end)

KEPT = []
GATE = Queue.new

APPLICATION = lambda do |env|
  case env['PATH_INFO']
  when %r{\A/env} then plain(NAMES.map { |name| "#{name}=#{env[name].inspect}\n" }.join)
  when '/pid' then plain(Process.pid.to_s)
  when '/echo' then plain(env['rack.input'].read)
  when '/digest' then plain(Digest::SHA1.hexdigest(env['rack.input'].read))
  when '/cookies' then plain('two', 'set-cookie' => "a=1\nb=2")
  when '/pieces' then [200, PLAIN, Pieces.new]
  when '/none' then [204, {}, []]
  when '/file' then [200, PLAIN, File.open(__FILE__)]
  when '/boom' then raise 'an error of the application'
  when '/late' then [200, PLAIN, Enumerator.new { |to| to << 'begun'; raise 'in the middle' }]
  when '/exit' then exit
  when '/die' then exit!(1)
  when '/end' then Thread.exit
  when '/limit'
    2.times { FAILURES.push(true) }
    plain('limited')
  when '/hold'
    File.write('held', Process.pid.to_s)
    sleep
  when '/dribble'
    [200, PLAIN, Enumerator.new { |to| to << 'begun'; sleep }]
  when '/scribble'
    # A bug that writes to all other sockets of the process.
    reply = env['rack.early_hints'].instance_variable_get(:@reply)
    own = reply.instance_variable_get(:@connection).socket
    others = ObjectSpace.each_object(UNIXSocket).select { |socket| socket.instance_of?(UNIXSocket) }
    others.reject! { |socket| socket.closed? || socket.equal?(own) }
    others.each { |socket| socket.write("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen") }
    plain("written #{others.size}")
  when '/change' then plain(env['PATH_INFO'] << '!', env['HTTP_HOST'].upcase!)
  when '/bytes' then plain("\u00fc", "\xff".b, 'x-text' => "\u00e9", 'x-byte' => "\xfe".b)
  when '/break' then plain('x', 'x-bad' => "a\rb")
  when '/marks' then [200, PLAIN.merge('transfer-encoding' => 'chunked'), ["3\r\nabc\r\n", "0\r\n\r\n"]]
  when '/short' then plain('x', 'content-length' => '9')
  when '/fork'
    Process.wait(fork { exit!(0) })
    $stdout.puts('this is for the log')
    plain('parent')
  when '/term'
    # As a pool of processes ends its children.
    child = fork { sleep }
    Process.kill('TERM', child)
    _, status = Process.wait2(child)
    plain(status.termsig.to_s)
  when '/child' then fork ? plain('parent') : plain('child')
  when '/hints'
    env['rack.early_hints'].call('link' => '</a.css>; rel=preload')
    plain('hinted')
  when '/wait' then plain(GATE.pop)
  when '/open'
    GATE.push('opened')
    plain('pushed')
  when '/partial'
    [200, PLAIN.merge('rack.hijack' => ->(stream) { Thread.new { stream.write(GATE.pop); stream.close } }), []]
  when '/upgrade'
    return plain('not now') unless env['HTTP_UPGRADE'] == 'echo'
    io = env['rack.hijack'].call
    io.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
    Thread.new do
      while (line = io.gets)
        io.write("echo #{line}")
      end
      io.close
    end
    [200, PLAIN, []]
  when '/keep'
    hints = env['rack.early_hints']
    KEPT << -> { hints.call('link' => '</stolen>') } << env['rack.hijack']
    plain('kept')
  when '/misuse'
    outcomes = KEPT.map do |kept|
      kept.call
      'done'
    rescue StandardError => error
      error.class.name
    end
    plain(outcomes.join(' '))
  else plain('nothing here', status: 404)
  end
end

if ENV['STREAMS']
  # A streaming body, which Rack 2 does not know, so without Lint.
  run(lambda do |env|
    [200, PLAIN, lambda do |stream|
      stream << 'one '
      stream.write(env['PATH_INFO'])
      stream.close
    end]
  end)
else
  use Rack::Lint
  run APPLICATION
end
