"""Word lists shared by the topics: names, heroes, things and places."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import entries, words

NAMES = words("""Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olive Paul Quinn Rosa
Sam Tom Uma Victor Wendy Xavier Yara Zoe Alex Bella Carlos Daniel Elena Fatima George Hannah Ivan Julia Karl
Laura Marco Nina Oscar Peter Rachel Simon Tina Viola Walter Maria John Mary James Robert Linda Susan Michael
Sarah Lisa Mark Steven Andrew Kevin Brian Eric Jason Ryan Amy Angela Emily Sophie Lucas Liam Ethan Mason Logan
Chris Max Nick Dan Tim Jim Joe Bob Alice Eve Steve Kim Lee Ali Omar Ahmed Yusuf Aisha Layla Zara Raj Priya Anil
Deepa Ravi Sita Wei Ming Li Chen Yuki Hiro Kenji Sakura Aiko Jin Soo Min Olga Boris Igor Natasha Dmitri Pierre
Marie Jean Claude Luc Ingrid Lars Sven Astrid Bjorn Freya Hans Greta Klaus Heidi Otto Frida Pablo Lucia Diego
Sofia Mateo Valentina Javier Carmen Ines Rui Joana Tiago Ana Luis Jose Pedro Giulia Luca Marta Piotr Kasia Jakub
Zofia Amara Kofi Ama Kwame Zuri Thabo Naledi Tariq Noor Salma Hassan Ruth Esther Miriam Adam Jonas Theo Finn Ella
Nora Maya Ruby Lily Daisy Ivy Hazel Jade Amber Violet Iris Rory Owen Dylan Rhys Megan Bridget Sean Connor Aidan
Niamh Harry Ron Arthur Edgar Hugo Bruno Stella Vera Alma Edith Mabel Ted Fred Gus Ray Roy Dean Troy Kyle Cody
Brett Jordan Casey Morgan Riley Taylor Jamie Robin Sasha Kai Nico Milo Remy Ari Noel Abby Becky Cindy Donna""")

PET_NAMES = words("""Pip Moss Bramble Tansy Rufus Fern Biscuit Juniper Pepper Willow Clover Otis Nutmeg Basil Poppy
Bean Ginger Flint Maple Sorrel Ash Rowan Pebble Dot Button Marlow Tilly Hobb Wren Teasel Barley Cricket Sage Birch
Ember Cinder Misty Luna Comet Orla Bodo Nilo Tam Juno Fable Dusty Muffin Pickle Olive Saffron Thistle Mabel
Finch Reed Sparrow Alder Cobble Linus Tove Momo Kiki Lulu Bibi Tuck Rolo Zuzu Hattie Ludo Minna Oskar Perrin""")

_START = words("B C D F G H J K L M N P R S T V W Z Br Tr Kr Dr Fl Sh Th Al El Or An In")
_MIDDLE = words("a e i o u ai ia eo ar er ir or al el il an en in on un")
_END = words("n r l s m ko la na ra ta mi ni vo do lo sa ri len dor bin tin mar wen")

ANIMALS = words("""fox cat dog mouse rabbit owl bear hedgehog squirrel frog duck goose hen crow sparrow robin otter
badger wolf deer goat sheep cow horse donkey pig lion tiger elephant monkey giraffe zebra penguin seal whale dolphin
turtle tortoise snail beetle bee ant butterfly spider lizard snake parrot swan heron bat mole beaver raccoon
hamster kitten puppy lamb foal pony camel kangaroo koala panda crab octopus fish salmon shark dragonfly moth
firefly ladybird worm toad newt squid starfish seahorse jellyfish pelican stork eagle hawk falcon raven magpie
peacock flamingo ostrich llama hare lynx moose reindeer weasel sloth crocodile hippo rhino gorilla cheetah""")
PEOPLE = entries("""girl;boy;baker;king;queen;knight;sailor;farmer;gardener;miller;painter;fisherman;wizard;
witch;pirate;princess;prince;shepherd;clockmaker;tailor;fiddler;teacher;doctor;child;giant;ghost;robot;
dragon;unicorn;troll;elf;fairy;mermaid;snowman;scarecrow;astronaut;detective;inventor;cook;postman;
lighthouse keeper;old woman;old man;baby dragon;little robot;night watchman;beekeeper;bookseller;carpenter;
juggler;clown;dancer;singer;potter;weaver;train driver;toy soldier;alien;ninja;vampire;
monster;grandmother;grandfather;blacksmith;hunter;programmer;scientist;nurse;firefighter;captain;dinosaur;
goblin;gnome;mummy;zombie;cowboy;samurai;thief;poet;barber;musician;student;soldier;superhero""")
THINGS = words("""lantern key hat boat kite drum flute bell clock mirror map book button ribbon spoon cup teapot kettle
basket blanket candle lamp ladder rope bucket broom shoe boot scarf coat umbrella pebble stone feather leaf acorn
apple pear pumpkin carrot pie cake loaf biscuit cookie jar bottle box chest ring crown sword shield coin pearl shell
star moonstone crystal marble top ball doll puppet balloon wagon cart bicycle sled train wheel compass telescope
violin guitar trumpet whistle piano fiddle letter postcard stamp pencil brush paintbox notebook clover rose seed
tulip sunflower mushroom nut cherry plum peach lemon onion potato pancake sandwich pizza cheese egg nest log
stick bridge gate door window chair table pillow quilt mitten sock glove ladle pan pot plate fork needle thimble
thread wool cushion rug carpet picture painting statue stool hammer nail saw spade rake wheelbarrow pump anchor oar
sail raft net hook lighthouse tent backpack suitcase ticket watch pocketknife torch flag trophy medal mask cape
wand potion spell cloak computer radio camera phone rocket spaceship satellite battery magnet spring gear
snowball icicle snowflake raindrop rainbow cloud shadow echo dream song secret wish riddle jewel diamond ruby
emerald necklace bracelet comb soap towel toothbrush banana orange strawberry melon coconut donut muffin honeypot
teacup saucer cactus fern branch root puddle swing slide seesaw hammock tower castle tractor truck bus helicopter
airplane submarine canoe skateboard scooter trampoline drumstick harp banjo dictionary newspaper calendar
wristwatch hourglass sundial telephone typewriter laptop keyboard television fridge oven toaster lightbulb""")
ADJECTIVES = words("""small little tiny big old young brave shy clever curious quiet lonely cheerful sleepy hungry kind
gentle clumsy proud patient grumpy lazy busy silly wise polite careful nervous red blue green golden silver
white black grey purple yellow round tall thin""")
THING_ADJECTIVES = words("""old tiny golden silver red blue green broken shiny rusty wooden magic little strange lost
painted striped warm heavy glowing forgotten yellow glass copper""")
PLACES = entries("""in a {quiet|dark|wide|green} forest;by {the|a wide} sea;on a {high|windy|green} hill;in a small village;
by a {slow|clear|cold} river;in {an old|a tall} lighthouse;in a {stone|red|tiny} cottage;
under {an old|a crooked} bridge;in a {busy|noisy|grey} city;on a {little|far|sandy} island;
in a {sunny|wild|walled} garden;at the edge of {a|the} desert;in a {snowy|deep|lonely} valley;
on a {small|quiet} farm;in {an empty|an old} mill;beside a {still|round|frozen} lake;high in the mountains;
in a hollow {tree|oak|log};behind a {bakery|library|school|church};in a {dusty|forgotten|tall} tower;
on the moon;in a {cave|den} under the rocks;in a {castle|palace} on a cliff;at the end of a {long|narrow} road;
in a {wide|golden} field;near a {busy|sleepy} harbour;in the attic of {an old|a tall} house;on a wide plain;
in a marsh full of reeds;inside {an old|a broken} clock;on a {space station|little planet|comet};in the jungle;
in a {toy shop|clock shop|museum};in an apple orchard;at the bottom of the {sea|garden};
in a {warm|noisy} kitchen;near the north pole;in a {tall|green} wood;under the {city|stairs|station};
on a {boat|barge|ship};by a waterfall""")
PLACE_WORDS = words("""forest sea hill village river lighthouse cottage bridge city island garden desert valley farm mill lake
mountains tower moon cave castle field harbour attic swamp jungle museum orchard kitchen wood ship space
town school library hospital beach ocean""")


def person_name(rng: Random) -> str:
    """A given name: usually a known one, sometimes one that nobody has."""
    if rng.random() < 0.75:
        return rng.choice(NAMES)
    return rng.choice(_START) + rng.choice(_MIDDLE) + rng.choice(_END)


def hero_name(rng: Random) -> str:
    """A name for somebody in a story."""
    return rng.choice(PET_NAMES) if rng.random() < 0.7 else rng.choice(NAMES)


def hero_kind(rng: Random) -> str:
    """Who a story is about: an animal or somebody from a tale."""
    return rng.choice(ANIMALS) if rng.random() < 0.6 else rng.choice(PEOPLE)
