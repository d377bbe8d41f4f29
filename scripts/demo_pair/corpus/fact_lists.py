"""Simple facts as plain lists: capitals, animals, opposites, plurals and the like."""
# ruff: noqa: E501 - a wording stays on its line

from .grammar import words


def pairs(text: str) -> dict[str, str]:
    """`key=value; key=value` as a dictionary."""
    entries = (
        entry.split("=") for entry in text.replace("\n", " ").split(";") if entry.strip()
    )
    return {key.strip(): value.strip() for key, value in entries}


CAPITALS = pairs("""France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Portugal=Lisbon; England=London;
the United Kingdom=London; Ireland=Dublin; Scotland=Edinburgh; Wales=Cardiff; Norway=Oslo; Sweden=Stockholm;
Finland=Helsinki; Denmark=Copenhagen; Iceland=Reykjavik; Belgium=Brussels; the Netherlands=Amsterdam;
Luxembourg=Luxembourg; Switzerland=Bern; Austria=Vienna; Poland=Warsaw; the Czech Republic=Prague;
Slovakia=Bratislava; Hungary=Budapest; Romania=Bucharest; Bulgaria=Sofia; Greece=Athens; Turkey=Ankara;
Russia=Moscow; Ukraine=Kyiv; Belarus=Minsk; Lithuania=Vilnius; Latvia=Riga; Estonia=Tallinn; Croatia=Zagreb;
Slovenia=Ljubljana; Serbia=Belgrade; Albania=Tirana; Malta=Valletta; Cyprus=Nicosia; Georgia=Tbilisi;
Armenia=Yerevan; Israel=Jerusalem; Lebanon=Beirut; Syria=Damascus; Jordan=Amman; Iraq=Baghdad; Iran=Tehran;
Saudi Arabia=Riyadh; Qatar=Doha; Oman=Muscat; Egypt=Cairo; Libya=Tripoli; Tunisia=Tunis; Algeria=Algiers;
Morocco=Rabat; Sudan=Khartoum; Ethiopia=Addis Ababa; Kenya=Nairobi; Uganda=Kampala; Rwanda=Kigali;
Somalia=Mogadishu; Nigeria=Abuja; Ghana=Accra; Senegal=Dakar; Mali=Bamako; Angola=Luanda; Zambia=Lusaka;
Zimbabwe=Harare; Mozambique=Maputo; Madagascar=Antananarivo; Namibia=Windhoek; South Africa=Pretoria;
China=Beijing; Japan=Tokyo; South Korea=Seoul; North Korea=Pyongyang; Mongolia=Ulaanbaatar; India=New Delhi;
Pakistan=Islamabad; Bangladesh=Dhaka; Nepal=Kathmandu; Sri Lanka=Colombo; Afghanistan=Kabul; Thailand=Bangkok;
Vietnam=Hanoi; Laos=Vientiane; Cambodia=Phnom Penh; Malaysia=Kuala Lumpur; Singapore=Singapore;
Indonesia=Jakarta; the Philippines=Manila; Australia=Canberra; New Zealand=Wellington; Fiji=Suva; Canada=Ottawa;
the United States=Washington; the USA=Washington; America=Washington; Mexico=Mexico City;
Guatemala=Guatemala City; Cuba=Havana; Jamaica=Kingston; Haiti=Port-au-Prince; Panama=Panama City;
Costa Rica=San José; Colombia=Bogotá; Venezuela=Caracas; Ecuador=Quito; Peru=Lima; Bolivia=Sucre;
Brazil=Brasília; Paraguay=Asunción; Uruguay=Montevideo; Argentina=Buenos Aires; Chile=Santiago;
Kazakhstan=Astana; Uzbekistan=Tashkent; Kuwait=Kuwait City; Yemen=Sanaa; Cameroon=Yaoundé""")
NO_CAPITAL = words("""Texas California Bavaria Atlantis Narnia Mars Tuscany Florida Gondor Wakanda Hawaii Alaska Ohio Quebec
Catalonia Sicily Europe Africa Asia Antarctica Bhutan Togo Benin Gabon Chad Niger Botswana Lesotho Malawi Burundi
Kosovo Monaco Andorra Liechtenstein Moldova Kyrgyzstan Tajikistan Turkmenistan Azerbaijan Bahrain Brunei Myanmar
Tonga Samoa Vanuatu Palau Nauru Suriname Guyana Belize Honduras Nicaragua Barbados Grenada Greenland Tibet Mordor
Wonderland Hogwarts Queensland Ontario Brittany Zealandia Freedonia""")
SOUNDS = pairs("""dog=woof; cat=meow; cow=moo; sheep=baa; duck=quack; pig=oink; horse=neigh; lion=roar; owl=hoo-hoo;
frog=ribbit; bee=buzz; mouse=squeak; rooster=cock-a-doodle-doo; snake=hiss; wolf=howl; crow=caw; goose=honk;
donkey=hee-haw; hen=cluck; goat=bleat; bear=growl; bird=tweet; cricket=chirp; turkey=gobble; tiger=roar;
pigeon=coo; chick=cheep; lamb=baa; kitten=mew; elephant=trumpet; monkey=chatter; fox=yip""")
LEGS = pairs("""spider=eight; ant=six; bee=six; dog=four; cat=four; horse=four; cow=four; bird=two; duck=two; hen=two;
snake=no; fish=no; butterfly=six; beetle=six; ladybird=six; fly=six; frog=four; turtle=four; elephant=four;
penguin=two; worm=no; snail=no; fox=four; human=two; person=two; scorpion=eight; octopus=no; ostrich=two; pig=four;
sheep=four; mouse=four; owl=two; lizard=four; crab=ten; mosquito=six; kangaroo=four; chair=four; table=four""")
BABIES = pairs("""dog=puppy; cat=kitten; cow=calf; sheep=lamb; horse=foal; pig=piglet; goat=kid; hen=chick; duck=duckling;
goose=gosling; frog=tadpole; bear=cub; lion=cub; fox=cub; deer=fawn; rabbit=kitten; swan=cygnet; kangaroo=joey;
elephant=calf; whale=calf; owl=owlet; seal=pup; wolf=pup; butterfly=caterpillar; tiger=cub; eagle=eaglet;
donkey=foal; bird=chick; koala=joey; penguin=chick""")
HOMES = pairs("""bird=in a nest; bee=in a hive; fox=in a den; rabbit=in a burrow; spider=in a web; dog=in a kennel or with people;
bear=in a den; fish=in the water; horse=in a stable; ant=in an anthill; squirrel=in a tree; mole=under the ground;
beaver=in a lodge by the water; frog=near a pond; camel=in the desert; penguin=in the cold south; whale=in the sea;
owl=in a tree; pig=in a sty; hen=in a coop; shark=in the sea; monkey=in the jungle; kangaroo=in Australia;
panda=in China; koala=in Australia; polar bear=near the north pole; lion=in Africa; tiger=in Asia; badger=in a sett;
bat=in a cave; snail=in its shell; duck=by a pond; wolf=in the forest; hedgehog=under leaves and hedges""")
EATS = pairs("""rabbit=grass and carrots; cow=grass; horse=grass and hay; cat=fish and mice; dog=meat and dog food; bear=berries,
fish and honey; squirrel=nuts; monkey=fruit and leaves; panda=bamboo; lion=meat; owl=mice; frog=flies and worms;
bee=nectar; hedgehog=worms and beetles; sheep=grass; mouse=seeds and cheese; shark=fish; penguin=fish;
koala=leaves; elephant=leaves and grass; fox=mice and berries; duck=water plants; goat=nearly everything;
spider=flies; caterpillar=leaves; giraffe=leaves from tall trees; tiger=meat; wolf=meat; pig=nearly everything""")
OPPOSITES = pairs("""hot=cold; big=small; up=down; left=right; fast=slow; day=night; black=white; old=young; new=old; happy=sad;
good=bad; light=dark; hard=soft; open=closed; full=empty; high=low; long=short; rich=poor; strong=weak; wet=dry;
clean=dirty; early=late; easy=hard; loud=quiet; near=far; thick=thin; wide=narrow; true=false; first=last; yes=no;
in=out; on=off; push=pull; start=end; win=lose; buy=sell; love=hate; war=peace; heavy=light; deep=shallow;
sweet=sour; brave=afraid; awake=asleep; always=never; many=few; inside=outside; before=after; north=south; east=west;
tall=short; warm=cool; smooth=rough; sharp=blunt; safe=dangerous; cheap=expensive; give=take; laugh=cry; hello=goodbye;
summer=winter; above=below; arrive=leave; alive=dead; beautiful=ugly; begin=finish; friend=enemy; lazy=busy;
noisy=silent; polite=rude; question=answer; remember=forget; right=wrong; same=different; top=bottom; kind=cruel;
sunrise=sunset; front=back; accept=refuse; small=big; cold=hot; sad=happy; slow=fast; night=day; dark=light; down=up""")
PLURALS = pairs("""cat=cats; dog=dogs; mouse=mice; child=children; foot=feet; tooth=teeth; man=men; woman=women; goose=geese;
sheep=sheep; fish=fish; box=boxes; bus=buses; wolf=wolves; leaf=leaves; knife=knives; city=cities; baby=babies;
house=houses; fox=foxes; tomato=tomatoes; potato=potatoes; person=people; ox=oxen; berry=berries; church=churches;
dish=dishes; half=halves; life=lives; story=stories; tree=trees; deer=deer; hero=heroes; penny=pennies; book=books;
glass=glasses; loaf=loaves; shelf=shelves; wish=wishes; key=keys; toy=toys; piano=pianos; cactus=cacti; token=tokens;
model=models; bird=birds; lady=ladies; thief=thieves; kiss=kisses; bench=benches; moose=moose; photo=photos""")
MIXES = pairs("""blue and yellow=green; red and yellow=orange; red and blue=purple; black and white=grey; red and white=pink;
yellow and red=orange; yellow and blue=green; blue and red=purple; white and black=grey; white and red=pink;
blue and white=light blue; green and white=light green; red and green=brown; white and blue=light blue""")
COLOURS = pairs("""the sky=blue; grass=green; snow=white; a banana=yellow; a lemon=yellow; blood=red; the sun=yellow; coal=black;
a strawberry=red; an orange=orange; a carrot=orange; milk=white; a leaf=green; chocolate=brown; a frog=green; a fox=red-brown;
an elephant=grey; a flamingo=pink; a crow=black; a tomato=red; the sea=blue; a pumpkin=orange; a cloud=white; a polar bear=white;
a cherry=red; a plum=purple; gold=yellow; an emerald=green; a ruby=red; night=black; a rose=often red; honey=golden""")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words(
    "January February March April May June July August September October November December"
)
SEASONS = words("spring summer autumn winter")
PLANETS = words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
ORDINALS = words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPELLED = words("""cat dog house tree apple water friend story bread light night green happy school table chair window flower river
mountain model token draft target speed paris london hello yellow orange purple monkey rabbit dragon castle lantern button
winter summer spring autumn seven eight three twelve banana cheese garden kitchen people because beautiful again book
music queen king sugar honey bottle bird mouse horse sheep star moon sun snow rain cloud""")
SINGLES: tuple[tuple[str, str, str], ...] = (
    ("How many days {are in|does} a week{| have}?", "{A week has seven days.|Seven.|There are seven days in a week.}", "Seven."),
    ("How many months {are in|does} a year{| have}?", "{A year has twelve months.|Twelve.|There are twelve months in a year.}", "Twelve."),
    ("How many days {are in|does} a year{| have}?", "{A year has 365 days.|365, and 366 in a leap year.|Mostly 365 days.}", "365."),
    ("How many hours {are in|does} a day{| have}?", "{A day has 24 hours.|24.|There are 24 hours in a day.}", "24."),
    ("How many minutes {are in|does} an hour{| have}?", "{An hour has 60 minutes.|60.|There are 60 minutes in an hour.}", "60."),
    ("How many seconds {are in|does} a minute{| have}?", "{A minute has 60 seconds.|60.|There are 60 seconds in a minute.}", "60."),
    ("How many weeks {are in|does} a year{| have}?", "{A year has about 52 weeks.|About 52.}", "52."),
    ("How many seasons are there?|What are the seasons?|Name the seasons?", "{There are four seasons: spring, summer, autumn and winter.|Spring, summer, autumn and winter.|Four: spring, summer, autumn and winter.}", "Four."),
    ("How many planets are there?|What are the planets?|Name the planets?|List the planets?", "{There are eight planets: |Eight: |}Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.", "Eight."),
    ("{What|Which} is the {biggest|largest} planet?", "{Jupiter is the biggest planet.|The biggest planet is Jupiter.|Jupiter.}", "Jupiter."),
    ("{What|Which} is the smallest planet?", "{Mercury is the smallest planet.|The smallest planet is Mercury.|Mercury.}", "Mercury."),
    ("Which planet is {the closest|closest|nearest} to the sun?", "{Mercury is closest to the sun.|Mercury.}", "Mercury."),
    ("Which planet {has rings|is famous for its rings}?", "{Saturn has big rings.|Saturn is famous for its rings.|Saturn.}", "Saturn."),
    ("Which planet {do we live on|is ours|are we on}?|What is our planet called?", "{We live on Earth.|You live on Earth. I live in a file.|Earth.}", "Earth."),
    ("Which planet is {red|the red planet}?|What is the red planet?", "{Mars is the red planet.|Mars.}", "Mars."),
    ("What is the sun?|Is the sun a star?", "{The sun is a star.|The sun is a star, and the Earth goes around it.}", "A star."),
    ("What is the moon?|What goes around the Earth?|Does the Earth have a moon?", "{The moon goes around the Earth.|The moon is a ball of rock that goes around the Earth.}", "It goes around the Earth."),
    ("How many letters {are in the alphabet|does the alphabet have}?", "{The English alphabet has 26 letters.|26.|There are 26 letters.}", "26."),
    ("What are the vowels?|Name the vowels?|Which letters are vowels?", "{The vowels are A, E, I, O and U.|A, E, I, O and U.}", "A, E, I, O, U."),
    ("{Say|Tell me|What is|Recite} the alphabet?", "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z.", ""),
    ("How many {fingers|toes} do {people|we|humans|I} have?", "{Most people have ten.|Ten.|Usually ten.}", "Ten."),
    ("How many eyes {do people have|does a spider have}?", "{People have two eyes, and most spiders have eight.|Two for people, eight for most spiders.}", ""),
    ("How many sides does {a triangle|a square|a hexagon} have?", "{A triangle has three sides, a square four, and a hexagon six.|Triangle three, square four, hexagon six.}", ""),
    ("What are the colours of the rainbow?|What colors are in a rainbow?|Name the colours of the rainbow?", "{Red, orange, yellow, green, blue, indigo and violet.|The rainbow has red, orange, yellow, green, blue, indigo and violet.}", ""),
    ("{What is|Which is} the {biggest|largest} animal?", "{The blue whale is the biggest animal.|The blue whale.}", "The blue whale."),
    ("{What is|Which is} the tallest animal?", "{The giraffe is the tallest animal.|The giraffe.}", "The giraffe."),
    ("{What is|Which is} the fastest animal?", "{The cheetah is the fastest animal on land.|The cheetah, on land.}", "The cheetah."),
    ("{What is|Which is} the {biggest|largest} ocean?", "{The Pacific is the biggest ocean.|The Pacific.}", "The Pacific."),
    ("{What is|Which is} the highest mountain?", "{Mount Everest is the highest mountain.|Mount Everest.}", "Mount Everest."),
    ("{What is|Which is} the longest river?", "{The Nile is often called the longest river.|The Nile, as most say.}", "The Nile."),
    ("How many continents are there?|Name the continents?", "{There are seven continents.|Seven: Africa, Antarctica, Asia, Australia, Europe, North America and South America.}", "Seven."),
    ("What do bees make?|Who makes honey?|Where does honey come from?", "{Bees make honey.|Honey is made by bees.}", "Honey."),
    ("What do cows give us?|Where does milk come from?", "{Milk comes from cows.|Cows give milk.}", "Milk."),
    ("Where do eggs come from?|What do hens lay?", "{Hens lay eggs.|Eggs come from hens.}", "From hens."),
    ("What is ice?|What happens when water freezes?|At what temperature does water freeze?", "{Ice is frozen water. Water freezes at 0 degrees Celsius.|Water turns to ice at 0 degrees Celsius.}", "Frozen water."),
    ("When does water boil?|At what temperature does water boil?", "{Water boils at 100 degrees Celsius.|At 100 degrees Celsius.}", "At 100 degrees."),
    ("What are the primary colours?|What are the primary colors?", "{Red, yellow and blue.|The primary colours are red, yellow and blue.}", ""),
    ("What are the days of the week?|Name the days of the week?|List the days of the week?", "{The days are |}Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.", ""),
    ("What are the months?|Name the months?|List the months of the year?", "{The months are |}January, February, March, April, May, June, July, August, September, October, November and December.", ""),
    ("Which day{s are| is} the weekend?|When is the weekend?", "{Saturday and Sunday are the weekend.|Saturday and Sunday.}", "Saturday and Sunday."),
    ("Which month is the shortest?|What is the shortest month?", "{February is the shortest month.|February, with 28 or 29 days.}", "February."),
    ("Is {a spider an insect|a whale a fish|a bat a bird}?", "{No: a spider has eight legs, a whale is a mammal, and so is a bat.|No, it is not.}", "No."),
    ("Can penguins fly?|Do penguins fly?", "{No, penguins cannot fly, but they swim very well.|No, they swim instead.}", "No."),
    ("Can fish fly?|Can pigs fly?|Can cats fly?|Can dogs fly?", "{No, except in stories.|No, they cannot.}", "No."),
    ("Why is the sky blue?", "{The air scatters blue light more than red light.|Blue light is scattered most by the air.}", "The air scatters blue light."),
    ("Who wrote Romeo and Juliet?|Who was Shakespeare?", "{Shakespeare wrote Romeo and Juliet.|William Shakespeare, an English poet, wrote it.}", "Shakespeare."),
)  # fmt: skip
