# The header fields of a reply, for rack.rb.
module Forebay
  # Lines of a head, and their number.
  class Fields
    NO_TOKEN = /[^!#$%&'*+\-.^_`|~0-9A-Za-z]/n.freeze
    MOST_KNOWN = 256
    # Kinds of names in lower case. Forebay itself sends the fields about the connection.
    KINDS = {
      'rack.hijack' => :hijack, 'content-length' => :length, 'transfer-encoding' => :transfer_encoding,
      **%w[connection keep-alive proxy-connection te trailer upgrade].to_h { |name| [name, :hop_by_hop] }
    }.freeze
    # Kinds of names that have passed the check.
    @known = {}

    # Returns the kind of a field. Refuses a name that is no token.
    def self.kind(name)
      @known[name] || check(name)
    end

    def self.check(name)
      text = name.to_s
      lowered = text.downcase
      kind = KINDS[lowered]
      kind ||= :ignored if lowered == 'status' || lowered.start_with?('rack.')
      raise ArgumentError, "#{name.inspect} is no name of a field" if text.empty? || NO_TOKEN.match?(text.b)
      kind ||= :plain
      @known[text.dup] = kind if @known.size < MOST_KNOWN
      kind
    end
    private_class_method :check

    # `lines` is the first line, in binary encoding.
    def initialize(lines)
      @lines, @count = lines, 1
    end

    # Appends a field: an array of values, or lines as in Rack 2. The caller has checked the name
    # with `kind`.
    def append(name, values)
      return append_line(name, values) if values.is_a?(String) && !values.include?("\n")
      values = values.to_s.split("\n") unless values.is_a?(Array)
      values.each { |value| append_line(name, value.to_s) }
    end

    # Returns the lines. Refuses line breaks in values.
    def finish
      if @lines.count("\r") != @count || @lines.count("\n") != @count || @lines.include?("\0")
        raise ArgumentError, "a line break in a field: #{@lines.inspect}"
      end
      @lines
    end

    private

    def append_line(name, value)
      @lines << name << ': ' << (value.ascii_only? ? value : value.b) << "\r\n"
      @count += 1
    end
  end
end
