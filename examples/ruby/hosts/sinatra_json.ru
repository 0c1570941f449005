# JSON from Sinatra.
require 'json'
require 'sinatra/base'

class Site < Sinatra::Base
  set :environment, :production
  disable :logging

  get '/json' do
    content_type :json
    JSON.generate(message: "Hello, #{params['name']}", numbers: (1..20).to_a)
  end
end

run Site
